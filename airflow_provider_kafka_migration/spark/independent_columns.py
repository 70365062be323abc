"""What the independent proof compares of a record, as expressions that Spark computes without Python.

A record's digest is SHA-256 over its timestamp, the lengths of its parts, and their bytes: null and empty, the order of
headers and repeated headers all count. A block's digest is SHA-256 over the digests of its records with their places,
ascending; a block has the records of :data:`BLOCK_OFFSETS` source offsets. The place of a record is its source offset:
records of the target get it from the offset map.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses
from pyspark.sql.column import Column

from airflow_provider_kafka_migration.documents.schemas import SchemaIdMap, TopicIdSettings
from airflow_provider_kafka_migration.schema_ids.id_map import ABSENT, IdMap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Source offsets of one block: what is read again to find a difference.
BLOCK_OFFSETS: Final = 10_000
#: The block of the target's records that the offset map does not know.
NO_BLOCK: Final = -1


def _nothing() -> Column:
    return F.unhex(F.lit(""))


def _length(part: Column) -> Column:
    """The length of a part in bytes; -1 for null."""
    return F.coalesce(F.octet_length(part), F.lit(-1))


def record_digest(*, with_timestamp: bool) -> Column:
    """SHA-256 of a record, as 64 hex digits.

    :param with_timestamp: False: readers of both sides see other times by design.
    """
    headers = F.col("headers")
    described = F.transform(headers, lambda header: F.concat_ws(":", _length(header["key"]), _length(header["value"])))
    content = F.aggregate(
        headers,
        _nothing(),
        lambda bytes_so_far, header: F.concat(
            bytes_so_far, F.encode(header["key"], "UTF-8"), F.coalesce(header["value"], _nothing())
        ),
    )
    # Microseconds, so that the time of day is not lost; the same function on both sides.
    time = F.unix_micros(F.col("timestamp")) if with_timestamp else F.lit("")
    lengths = F.concat_ws(
        "|", time, _length(F.col("key")), _length(F.col("value")), F.coalesce(F.concat_ws(",", described), F.lit(""))
    )
    return F.sha2(
        F.concat(
            F.encode(lengths, "UTF-8"),
            F.coalesce(F.col("key"), _nothing()),
            F.coalesce(F.col("value"), _nothing()),
            F.coalesce(content, _nothing()),
        ),
        256,
    )


def block() -> Column:
    """The block of a record, by its place."""
    return F.coalesce(F.floor(F.col("place") / F.lit(BLOCK_OFFSETS)), F.lit(NO_BLOCK)).cast("long")


def fold(records: DataFrame, *, with_timestamp: bool) -> DataFrame:
    """Return ``number, block, records, digest`` of each block.

    :param records: with ``number`` of the range, ``place`` and the columns of a Kafka record.
    """
    # Both numbers have fixed widths, so that text is sorted as numbers are, and no two lists give the same text.
    place = F.lpad(F.hex(F.coalesce(F.col("place"), F.col("offset"))), 16, "0")
    entry = F.concat(place, record_digest(with_timestamp=with_timestamp))
    return (
        records.select("number", block().alias("block"), entry.alias("entry"))
        .groupBy("number", "block")
        .agg(
            F.count("entry").alias("records"),
            F.sha2(F.concat_ws("", F.sort_array(F.collect_list("entry"))).cast("binary"), 256).alias("digest"),
        )
    )


def facts(records: DataFrame, *, with_timestamp: bool) -> DataFrame:
    """Return what is needed to compare records one by one, and to judge those that only one side has."""
    return records.select(
        "number",
        "place",
        "offset",
        block().alias("block"),
        record_digest(with_timestamp=with_timestamp).alias("digest"),
        F.sha2(F.col("key"), 256).alias("key_digest"),
        F.col("value").isNull().alias("is_tombstone"),
        (F.unix_micros(F.col("timestamp")) / F.lit(1000)).cast("long").alias("timestamp_ms"),
    )


# -- schema ids -------------------------------------------------------------------------------------------------------

_PAIRS = "source_id bigint, target_id bigint"


def with_target_ids(
    spark: SparkSession, records: DataFrame, settings: TopicIdSettings, document: SchemaIdMap
) -> DataFrame:
    """Return the source's records as they have to be on the target: schema ids replaced by those of the id map.

    An id that the map lacks, or that the source registry does not have, stays. So does one in front of a payload of a
    part that no subject is named after, unless such payloads were found to decode.
    """
    id_map = IdMap(document)
    # As a set: an id that is there twice must not double records.
    pairs = sorted(
        {
            (source, target)
            for context, source, _ in document.ids
            if context == settings.context
            for target in [id_map.find(context, "id32", source)]
            if isinstance(target, int)
        }
    )
    guids = [
        (source.lower(), target)
        for source, _ in document.guids
        for target in [id_map.find("", "guid", source)]
        if target is not ABSENT
    ]
    ids = _frame(spark, pairs, _PAIRS)
    with_zero = any(source == 0 for source, _ in pairs)
    for part in ("key", "value"):
        if settings.parts in (part, "both"):
            allowed = _decoded_ids(settings, document, part)
            mine = ids if allowed is None else _frame(spark, [row for row in pairs if row[0] in allowed], _PAIRS)
            records = _payload_ids(records, mine, part, with_zero=with_zero)
    names = [f"__{part}_schema_id" for part in ("key", "value") if settings.parts in (part, "both")]
    return _header_ids(spark, records, names, pairs, guids)


def _decoded_ids(settings: TopicIdSettings, document: SchemaIdMap, part: str) -> set[int] | None:
    """Return the ids that payloads of a part may have that no subject is named after; None: any id."""
    seen = {name: ids for name, ids in settings.decoded.items() if name == part}
    if not seen:
        return None
    later = (
        id_ for topic, name, id_, carries in document.decided if (topic, name, carries) == (settings.topic, part, True)
    )
    return {*later, *seen[part]}  # type: ignore[index]


def _payload_ids(records: DataFrame, ids: DataFrame, part: str, *, with_zero: bool) -> DataFrame:
    payload = F.col(part)
    begins = F.hex(F.substring(payload, 1, 5))
    first = F.conv(F.substring(begins, 3, 8), 16, 10).cast("long")
    second = F.conv(F.hex(F.substring(payload, 6, 4)), 16, 10).cast("long")
    limit = F.lit(2**31)
    has_header = F.coalesce(
        F.exists(F.col("headers"), lambda header: header["key"] == F.lit(f"__{part}_schema_id")), F.lit(False)
    )
    is_prefixed = (F.octet_length(payload) >= 5) & (F.substring(begins, 1, 2) == F.lit("00")) & ~has_header
    is_short = is_prefixed & (first < limit) & ((first > 0) | (F.lit(with_zero) & (first == 0)))
    is_long = is_prefixed & ~is_short & (first == 0) & (F.octet_length(payload) >= 9) & (second > 0) & (second < limit)
    found = records.withColumn("source_id", F.when(is_short, first).when(is_long, second))
    found = found.withColumn("is_short", is_short).join(F.broadcast(ids), "source_id", "left")
    rest = F.when(F.col("is_short"), F.substring(payload, 6, 2**30)).otherwise(F.substring(payload, 10, 2**30))
    number = F.lpad(F.hex(F.col("target_id")), 8, "0")
    prefix = F.unhex(F.concat(F.when(F.col("is_short"), F.lit("00")).otherwise(F.lit("0000000000")), number))
    replaced = F.when(F.col("target_id").isNotNull(), F.concat(prefix, rest)).otherwise(payload)
    return found.withColumn(part, replaced).drop("source_id", "target_id", "is_short")


def _header_ids(
    spark: SparkSession,
    records: DataFrame,
    names: Sequence[str],
    pairs: Sequence[tuple[int, int]],
    guids: Sequence[tuple[str, Any]],
) -> DataFrame:
    """Replace ids in the headers of :data:`~..schema_ids.wire_format.ID_HEADERS`."""
    changes = [(_short(source), _short(target)) for source, target in pairs]
    changes += [(_guid(source), _guid(str(target))) for source, target in guids]
    changes = [(source, target) for source, target in changes if source != target]
    if not changes or not names:
        return records
    replacements = _frame(spark, [(dict(changes),)], "replacements map<string, string>")
    found = records.crossJoin(F.broadcast(replacements))

    def replaced(header: Column) -> Column:
        target = F.element_at(F.col("replacements"), F.hex(header["value"]))
        value = F.when(header["key"].isin(*names) & target.isNotNull(), F.unhex(target)).otherwise(header["value"])
        return F.struct(header["key"].alias("key"), value.alias("value"))

    return found.withColumn("headers", F.transform(F.col("headers"), replaced)).drop("replacements")


def _short(number: int) -> str:
    return f"00{number:08X}"


def _guid(text: str) -> str:
    return f"01{text.replace('-', '').upper()}"


def _frame(spark: SparkSession, rows: Iterable[tuple[Any, ...]], schema: str) -> DataFrame:
    return spark.createDataFrame(list(rows), schema)
