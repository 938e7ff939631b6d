package isonomy.yarn;

import java.io.IOException;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.Function;
import org.apache.hadoop.conf.Configuration;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The switch: reads the stored mode when this ResourceManager becomes active, and stores a new one before it is in
 * force. While the mode cannot be read, it tries again.
 */
final class ModeSwitch implements AutoCloseable {
  private static final long RETRY_MS = 5_000;
  private static final Logger LOG = LoggerFactory.getLogger(ModeSwitch.class);

  private final ModeStore store;
  private final Configuration conf;
  private final Function<Managed, String> hindrance;
  private final Consumer<Managed> apply;
  private final Thread retries = new Thread(this::readAgain, "isonomy-mode");
  private Managed present = Managed.nothing();
  private volatile boolean closed;

  /** `hindrance`: why a mode cannot be in force here, or an empty string. `apply` must not throw. */
  ModeSwitch(ModeStore store, Configuration conf, Function<Managed, String> hindrance, Consumer<Managed> apply) {
    this.store = store;
    this.conf = conf;
    this.hindrance = hindrance;
    this.apply = apply;
    retries.setDaemon(true);
  }

  /** Puts the stored mode in force. */
  synchronized void open() {
    warnOfObsoleteKeys(conf);
    put(read());
    if (!present.problem().isEmpty()) {
      retries.start();
    }
  }

  void warnOfObsoleteKeys(Configuration conf) {
    List<String> obsolete = Managed.obsolete(conf);
    if (!obsolete.isEmpty()) {
      LOG.warn("yarn-site.xml: {}: obsolete, only the upgrade reads them, once; remove them. `isonomy mode` switches, and"
          + " the mode lies in {}", String.join(", ", obsolete), store);
    }
  }

  /** Puts a mode in force, unless this ResourceManager stands by since it was read or stored. */
  private void put(Managed wanted) {
    if (closed) {
      return;
    }
    if (!wanted.problem().isEmpty() && !wanted.problem().equals(present.problem())) {
      LOG.error("The mode cannot be read: nothing with GPUs is placed, running containers stay. {}", wanted.problem());
    }
    present = wanted;
    apply.accept(wanted);
  }

  /** The stored mode; that of the earlier version, which it stores, if none is. */
  private Managed read() {
    try {
      byte[] stored = store.read();
      Managed found = stored == null ? Managed.before(conf) : Managed.parse(stored);
      if (stored == null && !Managed.obsolete(conf).isEmpty()) {
        store.write(found.stored());
      }
      String why = hindrance.apply(found);
      return why.isEmpty() ? found : Managed.unreadable("it is " + found.name() + ", but " + why);
    } catch (IllegalArgumentException e) {
      return Managed.unreadable(e.getMessage());
    } catch (IOException | RuntimeException e) {
      return Managed.unreadable(store + ": " + e.getMessage());
    }
  }

  private synchronized void readAgain() {
    try {
      while (!closed && !present.problem().isEmpty()) {
        wait(RETRY_MS);
        if (!closed && !present.problem().isEmpty()) {
          Managed found = read();
          if (!found.problem().equals(present.problem())) {
            put(found);
          }
        }
      }
    } catch (InterruptedException e) {
      LOG.debug("Closed", e);
    }
  }

  /**
   * Stores a mode and puts it in force; `queues` null: as they are. Throws IllegalArgumentException where it may not
   * be, and IOException if it could not be stored: then nothing has changed.
   */
  synchronized Managed to(String mode, List<String> queues, String by) throws IOException {
    Managed wanted = Managed.of(mode, queues == null ? present.queues() : queues, by, System.currentTimeMillis());
    if (queues == null && wanted.places() && !present.problem().isEmpty()) {
      throw new IllegalArgumentException("queues: the stored ones cannot be read; name them (root: all)");
    }
    String why = hindrance.apply(wanted);
    if (!why.isEmpty()) {
      throw new IllegalArgumentException(mode + ": " + why);
    }
    try {
      store.write(wanted.stored());
    } catch (IOException | RuntimeException e) {
      throw new IOException("the mode could not be written to " + store + ", nothing has changed: " + e.getMessage(), e);
    }
    put(wanted);
    notifyAll();
    return wanted;
  }

  /** Where the mode lies. */
  String place() {
    return store.toString();
  }

  /** Waits for nothing: a store that does not answer must not keep a ResourceManager from standing by. */
  @Override
  public void close() {
    closed = true;
    retries.interrupt();
  }
}
