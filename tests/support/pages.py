"""A hostile text, and a reader of HTML pages that finds where it is not escaped."""

from html.parser import HTMLParser

HOSTILE = '</script><img src=x onerror=alert(1)> & "quoted" <b>'


class Reader(HTMLParser):
    """Collects the tags of a page, and its text outside of script and style."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.words, self.inside = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.inside = tag
        self.links += [value for name, value in attributes if name in ("src", "href") and not value.startswith("#")]

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside not in ("script", "style"):
            self.words.append(data)
