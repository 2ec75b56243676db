"""How a case is compiled: `kinds` has the compilers, `source` writes the program."""
