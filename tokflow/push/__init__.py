"""Exports in dataset repositories of the Hugging Face hub: their files, a card, and the proof that
they arrived."""
