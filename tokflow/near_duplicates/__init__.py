"""Near-duplicates: texts of a dataset that share most of their n-grams of tokens."""
