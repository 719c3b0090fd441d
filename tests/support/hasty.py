"""The plugin with a reconciler in a hurry: `python -P hasty.py [flags of the plugin]`.

It compares every second and takes what a claim held two seconds after that claim has gone, so that a test need not
wait for minutes; all else is the plugin's.
"""

from pathlib import Path

from dradriver.__main__ import main
from dradriver.prepare import reconciler

PROGRAM = ("-P", str(Path(__file__).resolve()))
"""What Python is to run instead of the plugin."""

if __name__ == "__main__":
    vars(reconciler).update(INTERVAL_SECONDS=1.0, GRACE_SECONDS=2.0)
    main()
