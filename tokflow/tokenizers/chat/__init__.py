"""Chats: their layouts, and the text that a chat template makes of them."""
