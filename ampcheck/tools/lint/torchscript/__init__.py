"""The linter's rules about TorchScript: programs that are scripted or traced."""
