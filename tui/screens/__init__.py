"""Screens over the chat: dialogs and the settings."""
