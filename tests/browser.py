"""Headless Chromium, driven through its own driver."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

# Without the background flags Chromium looks for its maker's servers, which a closed network answers slowly or not at all.
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1700,900",
)
PATIENCE = 90.0


@contextmanager
def chromium(profile: Path) -> Iterator[webdriver.Chrome]:
    """A browser with an empty profile; skips where Chromium or its driver is not installed."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not browser or not driver:
        pytest.skip("needs chromium and chromedriver (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    page = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield page
    finally:
        page.quit()


def visit(page: webdriver.Chrome, address: str) -> None:
    """Load a page anew; addresses that differ behind the # alone would keep what the page has in memory."""
    page.get("about:blank")
    page.get(address)


def text_once(page: webdriver.Chrome, *wanted: str) -> str:
    """The page's text as soon as it holds all of `wanted`. Fails with what it held instead."""

    def shown(_: webdriver.Chrome) -> str | bool:
        text = page.find_element("tag name", "body").text
        return text if all(w in text for w in wanted) else False

    try:
        return str(WebDriverWait(page, PATIENCE, ignored_exceptions=(Exception,)).until(shown))
    except Exception:
        raise AssertionError(f"not all of {wanted} in:\n{page.find_element('tag name', 'body').text}") from None
