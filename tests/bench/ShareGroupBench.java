import java.time.Duration;
import java.util.ArrayList;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.Executors;
import java.util.zip.CRC32;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Handles a topic with a share group (KIP-932) and prints the nanoseconds it took.
 *
 * One consumer that hands its records to threads, and acknowledges each: with one partition a few
 * consumers get most of the records, so that one consumer a thread leaves most of them idle.
 */
public final class ShareGroupBench {
    private static final String FEATURE = "share.version";

    public static void main(String[] args) throws Exception {
        // Not to go on alone where the benchmark is killed.
        ProcessHandle.current().parent().ifPresent(
            parent -> parent.onExit().thenRun(() -> Runtime.getRuntime().halt(1)));
        String servers = args[0], group = args[1], topic = args[2], work = args[3];
        long left = Long.parseLong(args[4]), first = 0;
        var threads = Executors.newFixedThreadPool(Integer.parseInt(args[5]));
        prepare(servers, group);
        Map<String, Object> config = Map.of(
            "bootstrap.servers", servers, "group.id", group,
            "share.acknowledgement.mode", "explicit");
        try (var consumer = new KafkaShareConsumer<byte[], byte[]>(
                config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (left > 0) {
                List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
                // This also sends the acknowledgements of the records before.
                consumer.poll(Duration.ofSeconds(1)).forEach(records::add);
                if (first == 0 && !records.isEmpty()) first = System.nanoTime();
                CountDownLatch done = new CountDownLatch(records.size());
                for (var record : records) {
                    threads.execute(() -> {
                        work(work, record.offset(), record.value());
                        done.countDown();
                    });
                }
                done.await();
                for (var record : records) consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                left -= records.size();
            }
            consumer.commitSync();
        }
        System.out.println("nanoseconds " + (System.nanoTime() - first));
        if (work.startsWith("stamps:")) Files.write(Path.of(work.substring(7)), STAMPS);
        System.exit(0);
    }

    /** Share groups are a preview in Kafka 4.1, and begin at the end of a topic unless told. */
    private static void prepare(String servers, String group) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            var found = admin.describeFeatures().featureMetadata().get().finalizedFeatures();
            if (!found.containsKey(FEATURE) || found.get(FEATURE).maxVersionLevel() == 0) {
                var update = new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.UPGRADE);
                admin.updateFeatures(Map.of(FEATURE, update), new UpdateFeaturesOptions()).all().get();
            }
            var start = new ConfigEntry("share.auto.offset.reset", "earliest");
            admin.incrementalAlterConfigs(Map.of(
                new ConfigResource(ConfigResource.Type.GROUP, group),
                List.of(new AlterConfigOp(start, AlterConfigOp.OpType.SET)))).all().get();
        }
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
