"""Messages to token ids with exact action masks, and sampled token ids back to messages."""

from offline_arl.rendering.renderer import Renderer

__all__ = ["Renderer"]
