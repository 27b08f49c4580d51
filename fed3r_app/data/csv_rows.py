"""Tables in CSV with a header, read row by row."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path


def read_rows(
    path: Path, needed: Sequence[str], complete: bool = False
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the line number and the cells of each row, by column.

    Cells that end too early are empty, unless every row must be complete.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            # Spreadsheets of many countries write semicolons.
            fitting = (by for by in ",;" if set(needed) <= set(_names(first, by)))
            delimiter = next(fitting, ",")
            header = _names(first, delimiter)
            file.seek(0)
            reader = csv.reader(file, delimiter=delimiter)
            next(reader, None)
            if not set(needed) <= set(header):
                raise ValueError(
                    f"{path} must have the columns {', '.join(needed)} in line 1, "
                    f"got {', '.join(header) or 'nothing'}."
                )
            for cells in filter(None, reader):  # without blank lines
                if complete and len(cells) != len(header):
                    raise ValueError(
                        f"{path} line {reader.line_num} must have {len(header)} "
                        f"columns, got {len(cells)}. Is the file cut off?"
                    )
                row = dict(zip(header, cells, strict=False))
                yield reader.line_num, dict.fromkeys(header, "") | row
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} must be CSV in UTF-8, got the byte 0x{error.object[error.start]:x}"
            ", as Latin-1 has. Save it again as CSV UTF-8."
        ) from error
    except csv.Error as error:
        raise ValueError(f"{path} must be CSV in UTF-8, got: {error}.") from error


def _names(line: str, delimiter: str) -> list[str]:
    cells = next(csv.reader([line], delimiter=delimiter), [])
    return [cell.strip() for cell in cells]


def whole_number(path: Path, line: int, column: str, text: str) -> int:
    """Return the number >= 0 in a cell, or raise ValueError with its place."""
    # Nine digits are plenty, and fit into any integer type.
    if not (text.isdecimal() and len(text) < 10):
        raise ValueError(
            f"{path} line {line}: {column} must be a whole number >= 0, got {text!r}."
        )
    return int(text)
