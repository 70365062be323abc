import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;

/** Prints what Apache Kafka reads in a file of batches: one line per record. */
public class ReadBatches {
    static String hex(ByteBuffer b) {
        if (b == null) return "null";
        byte[] bytes = new byte[b.remaining()];
        b.get(bytes);
        return "x" + HexFormat.of().formatHex(bytes);
    }

    public static void main(String[] args) throws Exception {
        MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(Files.readAllBytes(Path.of(args[0]))));
        StringBuilder out = new StringBuilder();
        for (RecordBatch batch : records.batches()) {
            batch.ensureValid();
            out.append("batch ").append(batch.baseOffset()).append(' ').append(batch.lastOffset()).append(' ');
            out.append(batch.compressionType().name).append(' ').append(batch.maxTimestamp()).append('\n');
            for (Record r : batch) {
                r.ensureValid();
                out.append(r.offset()).append(' ').append(r.timestamp()).append(' ').append(hex(r.key())).append(' ').append(hex(r.value()));
                for (Header h : r.headers())
                    out.append(' ').append(h.key()).append('=').append(h.value() == null ? "null" : hex(ByteBuffer.wrap(h.value())));
                out.append('\n');
            }
        }
        System.out.print(out);
    }
}
