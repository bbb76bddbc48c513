"""Review in the browser: a local page to label rows, read errors, and decide about releases."""
