"""The price list, as a server of tools."""

import verifiers.v1 as vf

PRICES = {"pen": 3, "ink": 7, "desk": 120}


class ShopToolset(vf.Toolset[vf.SharedToolsetConfig]):
    """One tool."""

    TOOL_PREFIX = "shop"

    @vf.tool
    def price(self, item: str) -> int:
        """The price of an item."""
        return PRICES[item]


if __name__ == "__main__":
    ShopToolset.run()
