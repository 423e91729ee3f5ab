"""Selection: which documents there are, by a rule over what is known of each."""
