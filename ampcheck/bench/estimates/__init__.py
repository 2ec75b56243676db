"""Estimates for chips that are not there: the program is compiled for the chip, and its schedule is read or priced."""
