package isonomy.am;

import com.google.protobuf.InvalidProtocolBufferException;
import isonomy.wire.v1.AmBoard;
import isonomy.wire.v1.AmCommand;
import isonomy.wire.v1.AmReply;
import java.util.Map;
import java.util.function.Consumer;
import org.apache.hadoop.yarn.util.LRUCacheHashMap;

/** The Agent's API: {@code poll} for events, {@code call} for commands; both use bytes of am.proto. */
public final class AgentApi {
  private static final int REPLIES_KEPT = 4096;

  private final EventQueue events;
  private final Containers containers;
  private final Consumer<Outcome> end;
  private final Consumer<AmBoard> board;
  private final Map<String, AmReply> replies = new LRUCacheHashMap<>(REPLIES_KEPT, false);

  AgentApi(EventQueue events, Containers containers, Consumer<Outcome> end, Consumer<AmBoard> board) {
    this.events = events;
    this.containers = containers;
    this.end = end;
    this.board = board;
  }

  /** The waiting events; if there are none, waits up to {@code waitMs} milliseconds for the next. */
  public byte[] poll(int waitMs) throws InterruptedException {
    return events.take(waitMs).toByteArray();
  }

  /** Carries out a command; a repeated id gets the first reply. */
  public synchronized byte[] call(byte[] bytes) throws InvalidProtocolBufferException {
    AmCommand command = AmCommand.parseFrom(bytes);
    AmReply reply = replies.get(command.getId());
    if (reply == null) {
      reply = carryOut(command);
      if (!command.getId().isEmpty()) {
        replies.put(command.getId(), reply);
      }
    }
    return reply.toByteArray();
  }

  private AmReply carryOut(AmCommand command) {
    try {
      switch (command.getKindCase()) {
        case ASK:
          containers.ask(command.getAsk());
          break;
        case WITHDRAW:
          containers.withdraw(command.getWithdraw().getAllocationRequestId());
          break;
        case LAUNCH:
          containers.launch(command.getLaunch());
          break;
        case STOP:
          containers.stop(command.getStop().getContainerId());
          break;
        case RELEASE:
          containers.release(command.getRelease().getContainerId());
          break;
        case FINISH:
          end.accept(Outcome.finished(command.getFinish()));
          break;
        case PROGRESS:
          containers.setProgress(command.getProgress().getFraction());
          break;
        case BOARD:
          board.accept(command.getBoard());
          break;
        default:
          throw new IllegalArgumentException("a command without a kind");
      }
      return AmReply.newBuilder().setOk(true).build();
    } catch (RuntimeException e) {
      return AmReply.newBuilder().setError(String.valueOf(e.getMessage())).build();
    }
  }
}
