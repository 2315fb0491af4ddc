"""The per-sample table as Parquet: the same columns as the CSV, typed. What is not known is null."""

import io

from validator.report.samples import COLUMN_TYPES, ColumnType, TableError


def render_parquet(table: bytes) -> bytes:
    """Return Parquet of the text of `samples.csv`.

    Args:
        table: with the heading `samples.COLUMNS`; numbers that are not finite are `nan`, `inf` and `-inf`.

    Raises:
        TableError: a cell is not of its column's type, or a line has not the cells of the table.
    """
    # Slow to import, and only here of use. mlflow brings it.
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    types = {ColumnType.NAME: pa.string(), ColumnType.COUNT: pa.int64(), ColumnType.NUMBER: pa.float64()}
    convert = pa.csv.ConvertOptions(
        column_types={name: types[kind] for name, kind in COLUMN_TYPES.items()},
        null_values=[""],
        strings_can_be_null=False,
        true_values=[],
        false_values=[],
    )
    try:
        rows = pa.csv.read_csv(
            io.BytesIO(table),
            read_options=pa.csv.ReadOptions(use_threads=False),
            convert_options=convert,
            parse_options=pa.csv.ParseOptions(newlines_in_values=False),
        )
    except pa.ArrowInvalid as error:
        raise TableError(str(error)) from error
    stream = io.BytesIO()
    pa.parquet.write_table(rows, stream, compression="zstd")
    return stream.getvalue()
