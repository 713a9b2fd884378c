"""The pushdown automaton over shapes: configurations, their token masks, and how tokens advance them."""
