package isonomy.yarn;

import isonomy.wire.GpuTag;
import isonomy.wire.v1.GpuContainer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.Predicate;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainerImpl;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.ContainerAllocationProposal;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.ResourceCommitRequest;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.SchedulerContainer;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.fica.FiCaSchedulerApp;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.fica.FiCaSchedulerNode;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The one allocator of GPU ids: a container that CapacityScheduler places gets ids that no other container of its node
 * has, as tags in the token that the ResourceManager signs, just as the control plane's placements do. There is no table
 * beside the containers: the ids in use are their tags.
 *
 * <p>The executor of a node allots GPUs itself to a container without tags (CapacityScheduler alone placed it) and
 * reports them as node attributes. Until it has, nothing says which GPUs of the node are free, and none is given out.
 */
final class GpuIds {
  private static final Logger LOG = LoggerFactory.getLogger(GpuIds.class);
  /** Beginning of the names of the executor's attributes: `...-3` is the container without a tag that has GPU 3. */
  static final String ALLOTTED = "nm.yarn.io/isonomy-gpu-";

  /** A container with ids, whatever tags its master's request had. */
  private static final class Numbered extends RMContainerImpl {
    private final Set<String> own;

    Numbered(SchedulerContainer<FiCaSchedulerApp, FiCaSchedulerNode> placed, RMContext rm, Set<String> own) {
      super(placed.getRmContainer().getContainer(), placed.getSchedulerRequestKey(),
          placed.getSchedulerApplicationAttempt().getApplicationAttemptId(), placed.getSchedulerNode().getNodeID(),
          placed.getSchedulerApplicationAttempt().getUser(), rm, placed.getRmContainer().getNodeLabelExpression());
      this.own = own;
      setAllocationTags(placed.getRmContainer().getAllocationTags());
    }

    /** CapacityScheduler calls it again as it commits, with the tags of a request by the constraint API. */
    @Override
    public void setAllocationTags(Set<String> tags) {
      super.setAllocationTags(own == null ? tags : with(tags, own));
    }
  }

  private final IsonomyScheduler scheduler;
  private final DrainingContainers ending;

  GpuIds(IsonomyScheduler scheduler, DrainingContainers ending) {
    this.scheduler = scheduler;
    this.ending = ending;
  }

  /**
   * Commits a proposal of CapacityScheduler, with ids for its GPUs. While the plugin is on, no container gets GPUs
   * without ids; else the node's executor allots them.
   */
  boolean commit(ResourceCommitRequest<FiCaSchedulerApp, FiCaSchedulerNode> request,
      Predicate<ResourceCommitRequest<FiCaSchedulerApp, FiCaSchedulerNode>> rest) {
    List<?> coming = request.getContainersToAllocate();
    SchedulerContainer<FiCaSchedulerApp, FiCaSchedulerNode> placed = coming == null || coming.isEmpty() ? null
        : request.getFirstAllocatedOrReservedContainer().getAllocatedOrReservedContainer();
    if (placed == null || !Gpus.has(placed.getRmContainer()) || Gpus.tag(placed.getRmContainer()) != null
        || !scheduler.numbers(placed.getSchedulerNode().getRMNode())) {
      return rest.test(request);
    }
    boolean[] done = new boolean[1];
    // No other container may get the same ids meanwhile.
    scheduler.underWriteLock(() -> done[0] = commit(request, placed, rest));
    return done[0];
  }

  private boolean commit(ResourceCommitRequest<FiCaSchedulerApp, FiCaSchedulerNode> request,
      SchedulerContainer<FiCaSchedulerApp, FiCaSchedulerNode> placed,
      Predicate<ResourceCommitRequest<FiCaSchedulerApp, FiCaSchedulerNode>> rest) {
    RMContainer[] numbered = new RMContainer[1];
    scheduler.guarded("the GPUs of a container", () -> numbered[0] = numbered(placed));
    if (numbered[0] == null && scheduler.managed.places()) {
      placed.getSchedulerApplicationAttempt().decUnconfirmedRes(request.getTotalAllocatedResource());
      return false;
    }
    boolean done = rest.test(numbered[0] == null ? request : replaced(request, placed, numbered[0]));
    if (done && numbered[0] != null) {
      scheduler.guarded("a container with GPUs", () -> scheduler.events.allocated(numbered[0]));
    }
    return done;
  }

  /** The container with ids; null if there are none for it now. */
  private RMContainer numbered(SchedulerContainer<FiCaSchedulerApp, FiCaSchedulerNode> placed) {
    try {
      int gpus = Gpus.of(placed.getRmContainer().getAllocatedResource());
      return new Numbered(placed, scheduler.getRMContext(), GpuTag.of(free(placed.getSchedulerNode(), gpus), ""));
    } catch (RejectedException e) {
      LOG.debug("{} cannot have GPUs now: {}", placed.getRmContainer(), e.getMessage());
      return null;
    }
  }

  private static ResourceCommitRequest<FiCaSchedulerApp, FiCaSchedulerNode> replaced(
      ResourceCommitRequest<FiCaSchedulerApp, FiCaSchedulerNode> request,
      SchedulerContainer<FiCaSchedulerApp, FiCaSchedulerNode> placed, RMContainer by) {
    ContainerAllocationProposal<FiCaSchedulerApp, FiCaSchedulerNode> old = request.getFirstAllocatedOrReservedContainer();
    return new ResourceCommitRequest<>(
        List.of(new ContainerAllocationProposal<>(
            new SchedulerContainer<>(placed.getSchedulerApplicationAttempt(), placed.getSchedulerNode(), by,
                placed.getNodePartition(), true),
            old.getToRelease(), old.getAllocateFromReservedContainer(), old.getAllocationLocalityType(),
            old.getRequestLocalityType(), old.getSchedulingMode(), old.getAllocatedOrReservedResource())),
        request.getContainersToReserve(), request.getContainersToRelease());
  }

  /** Free ids, the last ones first, so that leases and other containers seldom want the same. */
  private List<Integer> free(FiCaSchedulerNode node, int gpus) throws RejectedException {
    Map<Integer, String> held = held(node);
    List<Integer> free = new ArrayList<>();
    for (int id = Gpus.of(node.getTotalResource()) - 1; id >= 0 && free.size() < gpus; id--) {
      if (!held.containsKey(id)) {
        free.add(id);
      }
    }
    if (free.size() < gpus) {
      throw RejectedException.ofMachine("node " + node.getNodeID() + " has only GPUs " + free + " free");
    }
    return free;
  }

  private static Set<String> with(Set<String> tags, Set<String> own) {
    Set<String> all = new TreeSet<>(own);
    if (tags != null) {
      all.addAll(tags);
    }
    return all;
  }

  /** The ids in use on a node, and why each is. Throws RejectedException if the node has not said which they are. */
  Map<Integer, String> held(FiCaSchedulerNode node) throws RejectedException {
    learn(node);
    Map<Integer, String> held = new TreeMap<>();
    for (RMContainer container : node.getCopiedListOfRunningContainers()) {
      if (Gpus.untagged(container)) {
        throw RejectedException.ofMachine(container.getContainerId() + " on node " + node.getNodeID()
            + " has GPUs that Isonomy did not give it, and which ones is unknown");
      } else if (Gpus.has(container)) {
        Gpus.tag(container).gpuIds().forEach(id -> held.put(id, container.getContainerId() + " holds it"));
      }
    }
    // While nothing is placed, CapacityScheduler gives GPUs to the next container at once; the executor lets it wait.
    for (GpuContainer container : scheduler.managed.places() ? ending.on(node.getNodeID().toString()) : List.<GpuContainer>of()) {
      if (container.getGpuIdsCount() == 0) {
        throw RejectedException.ofMachine(container.getContainerId() + ", whose GPUs are unknown, has not ended yet");
      }
      container.getGpuIdsList().forEach(id -> held.put(id, container.getContainerId() + " has not ended yet"));
    }
    return held;
  }

  /** Gives containers without tags those for the GPUs that the node's executor reports. */
  synchronized void learn(FiCaSchedulerNode node) {
    for (RMContainer container : node.getCopiedListOfRunningContainers()) {
      if (Gpus.untagged(container)) {
        List<Integer> ids = allotted(node, container);
        if (ids.size() == Gpus.of(container.getAllocatedResource())) {
          Set<String> own = GpuTag.of(ids, "");
          ((RMContainerImpl) container).setAllocationTags(with(container.getAllocationTags(), own));
          // It takes them out when the container ends.
          scheduler.getRMContext().getAllocationTagsManager()
              .addContainer(node.getNodeID(), container.getContainerId(), own);
          scheduler.events.running(container);
        }
      }
    }
  }

  private List<Integer> allotted(FiCaSchedulerNode node, RMContainer container) {
    List<Integer> ids = new ArrayList<>();
    scheduler.attributes(node.getRMNode()).forEach((name, value) -> {
      if (name.matches(ALLOTTED + "\\d{1,5}") && value.equals(container.getContainerId().toString())) {
        ids.add(Integer.valueOf(name.substring(ALLOTTED.length())));
      }
    });
    return ids;
  }
}
