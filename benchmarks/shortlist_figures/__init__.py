"""What `shortlist_quality.py` is made of: scored candidates, ways to order them, figures."""
