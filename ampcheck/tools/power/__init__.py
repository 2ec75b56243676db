"""`ampcheck power`: break PyTorch in generated ways, a mutant each, and count those that the cases notice."""
