"""Write programs of plain torch that are text of their own: those of random programs and of the linter's cases."""
