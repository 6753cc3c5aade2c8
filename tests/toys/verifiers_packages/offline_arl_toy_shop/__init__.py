"""A taskset of verifiers: look prices up with a tool, and add them up. Tests run it through the library itself."""

from offline_arl_toy_shop.taskset import ShopTaskset

__all__ = ["ShopTaskset"]
