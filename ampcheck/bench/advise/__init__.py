"""`ampcheck bench advise`: which precision a step of the user's own gains from, and why."""
