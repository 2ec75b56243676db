"""The arrays behind the tensors: storage, layout, memory, and transfers to and from the CPU."""
