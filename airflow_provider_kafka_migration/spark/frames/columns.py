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

from airflow_provider_kafka_migration.documents.copy import ProvenanceSettings
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


# -- marks ------------------------------------------------------------------------------------------------------------
#
# Records of topics that two flows copy in opposite directions tell in a header where they were copied from:
# ``<cluster id>/<topic>/<partition>/<offset>``.


def marked(records: DataFrame, settings: ProvenanceSettings) -> DataFrame:
    """Return the source's records as they have to be on the target: marked, without those that came from there."""
    wanted = ~F.exists(_headers(), lambda header: _names(settings, header, settings.target_cluster_id))
    if settings.max_hops is not None:
        # No flow brings a record back to the place that it names: an application has written it again there.
        hops = F.filter(
            _headers(),
            lambda header: _names(settings, header) & ~_names(settings, header, settings.source_cluster_id),
        )
        wanted = wanted & (F.size(hops) < F.lit(settings.max_hops))
    mark = F.struct(
        F.lit(settings.header).alias("key"),
        F.encode(F.concat(F.lit(settings.source_cluster_id), _place(), F.col("offset")), "UTF-8").alias("value"),
    )
    return records.where(wanted).withColumn("headers", F.concat(_headers(), F.array(mark)))


def has_mark(settings: ProvenanceSettings) -> Column:
    """Whether a record of the target says that it was copied from the source."""
    return F.exists(_headers(), lambda header: _names(settings, header, settings.source_cluster_id))


def _headers() -> Column:
    return F.coalesce(F.col("headers"), F.array().cast("array<struct<key:string,value:binary>>"))


def _place() -> Column:
    return F.concat(F.lit("/"), F.col("topic"), F.lit("/"), F.col("partition"), F.lit("/"))


def _names(settings: ProvenanceSettings, header: Column, cluster_id: str = "") -> Column:
    """Whether a header names this partition.

    :param cluster_id: on this cluster; empty: on any.
    """
    text = F.coalesce(header["value"].cast("string"), F.lit(""))
    if cluster_id:
        begins = F.startswith(text, F.concat(F.lit(cluster_id), _place()))
    else:
        slash = F.locate("/", text)
        begins = (slash > 0) & F.startswith(text.substr(slash, F.lit(2**30)), _place())
    return (header["key"] == F.lit(settings.header)) & begins


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
        F.exists(
            F.col("headers"),
            lambda header: (header["key"] == F.lit(f"__{part}_schema_id")) & (_id_bytes(header["value"]) > 0),
        ),
        F.lit(False),
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
        value, length = header["value"], _id_bytes(header["value"])
        target = F.element_at(F.col("replacements"), F.hex(value.substr(F.lit(1), length)))
        rewritten = F.concat(F.unhex(target), value.substr(length + F.lit(1), F.lit(2**30)))
        is_id = header["key"].isin(*names) & (length > 0) & target.isNotNull()
        return F.struct(header["key"].alias("key"), F.when(is_id, rewritten).otherwise(value).alias("value"))

    return found.withColumn("headers", F.transform(F.col("headers"), replaced)).drop("replacements")


def _id_bytes(content: Column) -> Column:
    """The length of the magic byte and the id at the beginning of a header's value; 0: there is none."""
    first, length = F.hex(F.substring(content, 1, 1)), F.octet_length(content)
    number = F.conv(F.hex(F.substring(content, 2, 4)), 16, 10).cast("long")
    found = F.when((first == F.lit("01")) & (length >= 17), 17)
    found = found.when((first == F.lit("00")) & (length >= 5) & (number < F.lit(2**31)), 5)
    return F.coalesce(found.otherwise(0), F.lit(0))


def _short(number: int) -> str:
    return f"00{number:08X}"


def _guid(text: str) -> str:
    return f"01{text.replace('-', '').upper()}"


def _frame(spark: SparkSession, rows: Iterable[tuple[Any, ...]], schema: str) -> DataFrame:
    return spark.createDataFrame(list(rows), schema)
