import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.zip.CRC32;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Handles a topic with Confluent's Parallel Consumer and prints the nanoseconds it took. */
public final class ParallelConsumerBench {
    public static void main(String[] args) throws Exception {
        // Not to go on alone where the benchmark is killed.
        ProcessHandle.current().parent().ifPresent(
            parent -> parent.onExit().thenRun(() -> Runtime.getRuntime().halt(1)));
        String servers = args[0], group = args[1], topic = args[2], work = args[3];
        long records = Long.parseLong(args[4]);
        int concurrency = Integer.parseInt(args[5]);
        Map<String, Object> config = Map.of(
            "bootstrap.servers", servers, "group.id", group, "auto.offset.reset", "earliest",
            "enable.auto.commit", "false", "max.poll.records", "10000");
        var consumer = new KafkaConsumer<byte[], byte[]>(
            config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        var options = ParallelConsumerOptions.<byte[], byte[]>builder()
            .ordering(ProcessingOrder.KEY).maxConcurrency(concurrency).consumer(consumer).build();
        var processor = ParallelStreamProcessor.createEosStreamProcessor(options);
        AtomicLong first = new AtomicLong(), left = new AtomicLong(records);
        CountDownLatch done = new CountDownLatch(1);
        processor.subscribe(List.of(topic));
        processor.poll(context -> {
            first.compareAndSet(0, System.nanoTime());
            work(work, context.getSingleRecord().offset(), context.getSingleRecord().value());
            if (left.decrementAndGet() == 0) done.countDown();
        });
        done.await();
        // Closing waits for the last commit, as ours is waited for.
        processor.closeDrainFirst();
        System.out.println("nanoseconds " + (System.nanoTime() - first.get()));
        if (work.startsWith("stamps:")) Files.write(Path.of(work.substring(7)), STAMPS);
        System.exit(0);
    }

    private static final ConcurrentLinkedQueue<String> STAMPS = new ConcurrentLinkedQueue<>();
    private static final AtomicBoolean HAS_BEGUN = new AtomicBoolean();

    /** Notes the offset, the time that the value begins with, and the time of the call. */
    private static void stamp(long offset, byte[] value) {
        Instant now = Instant.now();
        long nanos = now.getEpochSecond() * 1_000_000_000L + now.getNano();
        STAMPS.add(offset + " " + new String(value).split(" ")[0] + " " + nanos);
        if (HAS_BEGUN.compareAndSet(false, true)) {
            System.out.println("begun");
            System.out.flush();
        }
    }

    private static void work(String work, long offset, byte[] value) {
        if (work.startsWith("stamps:")) {
            stamp(offset, value);
            return;
        }
        try {
            if (work.equals("sleep10")) {
                Thread.sleep(10);
            } else if (work.equals("sleep0to5")) {
                CRC32 hash = new CRC32();
                hash.update(Long.toString(offset).getBytes());
                long micros = hash.getValue() % 5001;
                Thread.sleep(micros / 1000, (int) (micros % 1000) * 1000);
            }
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }
}
