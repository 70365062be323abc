import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.function.Predicate;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.EndTransactionMarker;
import org.apache.kafka.common.record.ControlRecordType;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.MutableRecordBatch;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.SimpleRecord;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.BufferSupplier;

/**
 * Writes golden.json: batches encoded, compacted and read back by Apache Kafka's own code (3.9.1).
 *
 * java -cp 'JARS_OF_KAFKA_3_9_1/*' GoldenBatches.java > golden.json
 */
public class GoldenBatches {
    static final HexFormat HEX = HexFormat.of();
    static final long TIME = 1_600_000_000_000L;
    static final List<String> vectors = new ArrayList<>();

    static byte[] text(String s) { return s == null ? null : s.getBytes(StandardCharsets.UTF_8); }

    static byte[] noise(int size, boolean compressible) {
        byte[] out = new byte[size];
        long state = 12345;
        for (int i = 0; i < size; i++) {
            state = state * 6364136223846793005L + 1442695040888963407L;
            out[i] = compressible ? (byte) "kafka".charAt(i % 5) : (byte) (state >>> 56);
        }
        return out;
    }

    static SimpleRecord record(long time, byte[] key, byte[] value, Object... headers) {
        Header[] found = new Header[headers.length / 2];
        for (int i = 0; i < found.length; i++) found[i] = new RecordHeader((String) headers[2 * i], (byte[]) headers[2 * i + 1]);
        return new SimpleRecord(time, key, value, found);
    }

    static List<SimpleRecord> sample(boolean headers, boolean large) {
        List<SimpleRecord> all = new ArrayList<>();
        all.add(record(TIME, text("k0"), text("v0")));
        all.add(record(TIME - 5_000, null, text("no key")));
        all.add(record(TIME + 3_000_000_000L, text(""), text("")));
        all.add(record(-1, text("tombstone"), null));
        all.add(record(0, text("1970"), text("v4")));
        if (headers) {
            all.add(record(TIME + 1, text("h"), text("v5"), "a", text("1"), "a", text("2"), "", null, "b", text(""), "a", null));
            all.add(record(TIME + 2, null, null, "only", noise(200, false)));
        }
        all.add(record(TIME + 3, noise(100, false), noise(large ? 150_000 : 300, true)));
        all.add(record(TIME + 4, text("k"), noise(600, false)));
        all.add(record(TIME + 4, text("same millisecond"), text("é\u0000ü")));
        return all;
    }

    static ByteBuffer write(byte magic, CompressionType codec, TimestampType type, long base, long appendTime,
                            long producer, short epoch, int sequence, boolean transactional, List<SimpleRecord> records) {
        ByteBuffer buffer = ByteBuffer.allocate(1 << 20);
        MemoryRecordsBuilder builder = MemoryRecords.builder(buffer, magic, Compression.of(codec).build(), type, base,
            appendTime, producer, epoch, sequence, transactional, false, 7);
        for (SimpleRecord r : records) builder.append(r);
        return builder.build().buffer();
    }

    static ByteBuffer compact(ByteBuffer input, long deleteRetention, long now, Predicate<Record> keep) {
        ByteBuffer out = ByteBuffer.allocate(1 << 20);
        MemoryRecords.RecordFilter filter = new MemoryRecords.RecordFilter(now, deleteRetention) {
            protected BatchRetentionResult checkBatchRetention(RecordBatch batch) {
                return new BatchRetentionResult(batch.magic() == 2 ? BatchRetention.RETAIN_EMPTY : BatchRetention.DELETE_EMPTY, false);
            }
            protected boolean shouldRetainRecord(RecordBatch batch, Record record) { return keep.test(record); }
        };
        MemoryRecords.readableRecords(input.duplicate()).filterTo(new TopicPartition("t", 0), filter, out,
            Integer.MAX_VALUE, BufferSupplier.NO_CACHING);
        out.flip();
        return out;
    }

    static String sha256(byte[] bytes) {
        try {
            return HEX.formatHex(java.security.MessageDigest.getInstance("SHA-256").digest(bytes));
        } catch (java.security.NoSuchAlgorithmException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Hex in quotes; of large values only the digest. */
    static String hex(ByteBuffer b, boolean whole) {
        if (b == null) return "null";
        byte[] bytes = new byte[b.remaining()];
        b.duplicate().get(bytes);
        if (!whole && bytes.length > 1000) return "\"sha256:" + sha256(bytes) + '"';
        return '"' + HEX.formatHex(bytes) + '"';
    }

    static void emit(String name, ByteBuffer data) {
        StringBuilder out = new StringBuilder();
        out.append("{\"name\": \"").append(name).append("\",\n \"data\": ").append(hex(data, true)).append(",\n \"batches\": [");
        String batchSep = "";
        for (MutableRecordBatch batch : MemoryRecords.readableRecords(data.duplicate()).batches()) {
            batch.ensureValid();
            out.append(batchSep).append("\n  {\"magic\": ").append(batch.magic());
            batchSep = ",";
            out.append(", \"last_offset\": ").append(batch.lastOffset()).append(", \"codec\": ").append(batch.compressionType().id);
            out.append(", \"size_bytes\": ").append(batch.sizeInBytes());
            out.append(", \"log_append_time\": ").append(batch.timestampType() == TimestampType.LOG_APPEND_TIME);
            if (batch.magic() == 2) {
                out.append(", \"base_offset\": ").append(batch.baseOffset()).append(", \"count\": ").append(batch.countOrNull());
                out.append(", \"max_timestamp\": ").append(batch.maxTimestamp()).append(", \"producer_id\": ").append(batch.producerId());
                out.append(", \"producer_epoch\": ").append(batch.producerEpoch()).append(", \"base_sequence\": ").append(batch.baseSequence());
                out.append(", \"transactional\": ").append(batch.isTransactional()).append(", \"control\": ").append(batch.isControlBatch());
                out.append(", \"delete_horizon\": ").append(batch.deleteHorizonMs().isPresent() ? batch.deleteHorizonMs().getAsLong() : null);
                out.append(", \"leader_epoch\": ").append(batch.partitionLeaderEpoch());
            }
            out.append(", \"records\": [");
            String sep = "";
            for (Record r : batch) {
                out.append(sep).append("\n   [").append(r.offset()).append(", ").append(r.timestamp()).append(", ");
                out.append(hex(r.key(), false)).append(", ").append(hex(r.value(), false)).append(", [");
                String headerSep = "";
                for (Header h : r.headers()) {
                    out.append(headerSep).append("[\"").append(HEX.formatHex(text(h.key()))).append("\", ");
                    out.append(h.value() == null ? "null" : '"' + HEX.formatHex(h.value()) + '"').append("]");
                    headerSep = ", ";
                }
                out.append("]]");
                sep = ",";
            }
            out.append("]}");
        }
        vectors.add(out.append("]}").toString());
    }

    public static void main(String[] args) {
        short none = RecordBatch.NO_PRODUCER_EPOCH;
        for (CompressionType codec : new CompressionType[] {CompressionType.NONE, CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4, CompressionType.ZSTD}) {
            boolean large = codec != CompressionType.NONE;
            emit("v2-" + codec.name, write((byte) 2, codec, TimestampType.CREATE_TIME, 1000, -1, -1, none, -1, false, sample(true, large)));
        }
        emit("v2-log-append-time", write((byte) 2, CompressionType.GZIP, TimestampType.LOG_APPEND_TIME, 5, TIME + 77, -1, none, -1, false, sample(true, false)));
        emit("v2-transactional", write((byte) 2, CompressionType.LZ4, TimestampType.CREATE_TIME, 42, -1, 9001, (short) 3, 2147483640, true, sample(true, false)));
        for (CompressionType codec : new CompressionType[] {CompressionType.NONE, CompressionType.ZSTD}) {
            ByteBuffer full = write((byte) 2, codec, TimestampType.CREATE_TIME, 200, -1, 77, (short) 0, 0, false, sample(true, false));
            emit("v2-compacted-" + codec.name, compact(full, 1000, TIME, r -> r.offset() % 3 == 1));
            emit("v2-horizon-" + codec.name, compact(full, 86_400_000L, TIME + 999, r -> r.offset() != 201));
            emit("v2-emptied-" + codec.name, compact(full, 1000, TIME, r -> false));
        }
        emit("v2-commit-marker", MemoryRecords.withEndTransactionMarker(300, TIME, 7, 9001, (short) 3, new EndTransactionMarker(ControlRecordType.COMMIT, 5)).buffer());
        emit("v2-abort-marker", MemoryRecords.withEndTransactionMarker(301, TIME, 7, 9001, (short) 3, new EndTransactionMarker(ControlRecordType.ABORT, 5)).buffer());
        for (byte magic = 0; magic < 2; magic++)
            for (CompressionType codec : new CompressionType[] {CompressionType.NONE, CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4}) {
                TimestampType type = magic == 0 ? TimestampType.NO_TIMESTAMP_TYPE : TimestampType.CREATE_TIME;
                boolean large = codec != CompressionType.NONE;
                ByteBuffer full = write(magic, codec, type, 500, -1, -1, none, -1, false, sample(false, large));
                emit("v" + magic + "-" + codec.name, full);
                emit("v" + magic + "-compacted-" + codec.name, compact(full, 1000, TIME, r -> r.offset() % 2 == 1));
            }
        emit("v1-log-append-time-gzip", write((byte) 1, CompressionType.GZIP, TimestampType.LOG_APPEND_TIME, 10, TIME + 88, -1, none, -1, false, sample(false, false)));
        emit("v1-log-append-time-none", write((byte) 1, CompressionType.NONE, TimestampType.LOG_APPEND_TIME, 10, TIME + 88, -1, none, -1, false, sample(false, false)));
        System.out.println("[" + String.join(",\n", vectors) + "]");
    }
}
