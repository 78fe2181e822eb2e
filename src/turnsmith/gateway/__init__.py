"""The agent gateway: a model behind a URL, for agents that bring their own loop, recorded token for token.

Knows nothing about environments, rewards or training. Start reading in `forest`.
"""
