"""`fed3r cache`: what is kept of images to save time, where, and what of it may go."""

from __future__ import annotations

import argparse

from fed3r_app.cli import arguments as args
from fed3r_app.files.row_cache import cache_dir, folder_sizes
from fed3r_app.runs.report import format_bytes
from fed3r_app.words import first_names

commands = args.Group()


@commands.command(
    "cache",
    "show where features are cached and how large that is; remove what is of no use",
    args.argument(
        "action",
        "remove what is cached of images that nodes here had and have no more",
        choices=["prune"],
        nargs="?",
    ),
    args.argument(
        "--absent-too",
        "with prune: also of folders that are not there any more, which may be on a "
        "drive that is not mounted",
        action="store_true",
    ),
)
def cache(options: argparse.Namespace) -> int:
    """Show the cache of this user on this machine, $FED3R_CACHE_DIR.

    What it holds is as private as the images, and made again when it is missing. Images
    that a node's folder has no more leave the cache at the next run; prune does it now.
    """
    from fed3r_app.data.seen_images import prune

    folder = cache_dir()
    if options.action:
        removed, absent = prune(folder, absent_too=options.absent_too)
        freed = format_bytes(removed.size)
        print(f"removed {removed.rows} rows of images that are gone, {freed}")
        if absent:
            named = first_names(absent, 10)
            outcome = "removed, too" if options.absent_too else "kept (--absent-too)"
            print(f"not there, and {outcome}: {named}")
    entries = [*folder_sizes(folder)]
    for name, files, size in entries:
        print(f"{format_bytes(size):>9}  {files:>7} files  {name}")
    total = format_bytes(sum(size for _, _, size in entries))
    print(f"{total:>9}  in {folder}")
    return 0
