"""Other protocols than OpenAI's chats, each of them told in chats."""
