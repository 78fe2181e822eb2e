"""An environment with a browser of its own: Playwright's sync API, which serves only the thread that started it."""

from __future__ import annotations

import importlib
from typing import Any

from turnsmith import BaseEnvironment, tool

PAGE = """
<input id="item"><button onclick="add()">Add</button><ul id="cart"></ul>
<script>
function add() {
  cart.insertAdjacentHTML("beforeend", "<li></li>")
  cart.lastChild.innerText = item.value
}
</script>
"""


class Browser(BaseEnvironment):
    """Each answer of the model goes into a form of a page. `config.chromium` is the browser's program."""

    def reset(self) -> str:
        """Start a browser and open the page."""
        # Not installed where the types are checked.
        self.play: Any = importlib.import_module("playwright.sync_api").sync_playwright().start()
        self.browser = self.play.chromium.launch(executable_path=self.config.chromium, args=["--no-sandbox"])
        self.page = self.browser.new_page()
        self.page.set_content(PAGE)
        return "What shall I buy?"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Type the answer and press the button."""
        self.page.fill("#item", action)
        self.page.click("button")
        count = self.items()
        return f"There are {count} things in the cart.", float(count), count == 3, {}

    @tool
    def items(self) -> int:
        """How many things are in the cart."""
        return self.page.locator("li").count()

    def close(self) -> None:
        """End the browser."""
        self.browser.close()
        self.play.stop()
