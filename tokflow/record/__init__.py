"""Records of an export for others: the card and the Croissant description beside it, drafts of what
laws ask for, and a receipt of all that it was made from."""
