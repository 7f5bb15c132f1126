"""Screens over the chat: dialogs, the settings, the duel."""
