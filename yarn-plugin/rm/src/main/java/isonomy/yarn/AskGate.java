package isonomy.yarn;

import java.io.IOException;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.ams.ApplicationMasterServiceContext;
import org.apache.hadoop.yarn.ams.ApplicationMasterServiceProcessor;
import org.apache.hadoop.yarn.ams.ApplicationMasterServiceUtils;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateRequest;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateResponse;
import org.apache.hadoop.yarn.api.protocolrecords.FinishApplicationMasterRequest;
import org.apache.hadoop.yarn.api.protocolrecords.FinishApplicationMasterResponse;
import org.apache.hadoop.yarn.api.protocolrecords.RegisterApplicationMasterRequest;
import org.apache.hadoop.yarn.api.protocolrecords.RegisterApplicationMasterResponse;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ContainerUpdateType;
import org.apache.hadoop.yarn.api.records.ExecutionType;
import org.apache.hadoop.yarn.api.records.ExecutionTypeRequest;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.api.records.SchedulingRequest;
import org.apache.hadoop.yarn.api.records.UpdateContainerError;
import org.apache.hadoop.yarn.api.records.UpdateContainerRequest;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.exceptions.InvalidResourceRequestException;
import org.apache.hadoop.yarn.exceptions.YarnException;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.YarnScheduler;
import org.apache.hadoop.yarn.server.scheduler.SchedulerRequestKey;

/**
 * Refuses requests for GPUs that are not allowed, early enough that application masters get the reason: opportunistic
 * containers (which no scheduler places), a change of a running container's GPUs or execution type, and asks under
 * too many keys.
 */
public final class AskGate implements ApplicationMasterServiceProcessor {
  private static final Set<ContainerUpdateType> RESIZES =
      EnumSet.of(ContainerUpdateType.INCREASE_RESOURCE, ContainerUpdateType.DECREASE_RESOURCE);
  private ApplicationMasterServiceProcessor next;
  private RMContext rm;

  /** Adds this class as the first processor of the master service, which is created after the scheduler. */
  static void addTo(Configuration conf) {
    List<String> processors =
        new ArrayList<>(conf.getTrimmedStringCollection(YarnConfiguration.RM_APPLICATION_MASTER_SERVICE_PROCESSORS));
    if (!processors.contains(AskGate.class.getName())) {
      processors.add(0, AskGate.class.getName());
      conf.set(YarnConfiguration.RM_APPLICATION_MASTER_SERVICE_PROCESSORS, String.join(",", processors));
    }
  }

  @Override
  public void init(ApplicationMasterServiceContext context, ApplicationMasterServiceProcessor following) {
    rm = (RMContext) context;
    next = following;
  }

  @Override
  public void registerApplicationMaster(ApplicationAttemptId id, RegisterApplicationMasterRequest request,
      RegisterApplicationMasterResponse response) throws IOException, YarnException {
    next.registerApplicationMaster(id, request, response);
  }

  @Override
  public void allocate(ApplicationAttemptId id, AllocateRequest request, AllocateResponse response)
      throws YarnException {
    YarnScheduler scheduler = rm.getScheduler();
    List<UpdateContainerError> errors = new ArrayList<>();
    if (scheduler instanceof IsonomyScheduler) {
      if (((IsonomyScheduler) scheduler).manages(id)) {
        check(id, (IsonomyScheduler) scheduler, request);
      }
      errors = takeUpdates((IsonomyScheduler) scheduler, request);
    }
    next.allocate(id, request, response);
    if (!errors.isEmpty()) {
      ApplicationMasterServiceUtils.addToUpdateContainerErrors(response, errors);
    }
  }

  @Override
  public void finishApplicationMaster(
      ApplicationAttemptId id, FinishApplicationMasterRequest request, FinishApplicationMasterResponse response) {
    next.finishApplicationMaster(id, request, response);
  }

  private static void check(ApplicationAttemptId id, IsonomyScheduler scheduler, AllocateRequest request)
      throws YarnException {
    Set<SchedulerRequestKey> keys = new HashSet<>();
    for (ResourceRequest r : orNone(request.getAskList())) {
      if (r.getNumContainers() > 0 && Gpus.of(r.getCapability()) > 0) {
        refuseOpportunistic(id, r.getExecutionTypeRequest());
        keys.add(SchedulerRequestKey.create(r));
      }
    }
    for (SchedulingRequest r : orNone(request.getSchedulingRequests())) {
      if (Gpus.of(r) > 0 && r.getResourceSizing().getNumAllocations() > 0) {
        refuseOpportunistic(id, r.getExecutionType());
        keys.add(SchedulerRequestKey.create(r));
      }
    }
    String refusal = keys.isEmpty() ? null : scheduler.asks.refusal(id, keys);
    if (refusal != null) {
      throw new InvalidResourceRequestException(refusal);
    }
  }

  private static void refuseOpportunistic(ApplicationAttemptId id, ExecutionTypeRequest type) throws YarnException {
    if (type != null && type.getExecutionType() == ExecutionType.OPPORTUNISTIC) {
      throw new InvalidResourceRequestException(
          id + " asks for GPUs in OPPORTUNISTIC containers; GPUs are leased, ask for them in GUARANTEED ones");
    }
  }

  /** Refuses changes of a running container's GPUs, which are its leases, or of its execution type. */
  private static List<UpdateContainerError> takeUpdates(IsonomyScheduler scheduler, AllocateRequest request) {
    List<UpdateContainerError> errors = new ArrayList<>();
    List<UpdateContainerRequest> others = new ArrayList<>();
    for (UpdateContainerRequest r : orNone(request.getUpdateRequests())) {
      RMContainer container = scheduler.getRMContainer(r.getContainerId());
      int gpus = container == null ? 0 : Gpus.of(container.getAllocatedResource());
      boolean resized = r.getCapability() != null && Gpus.of(r.getCapability()) != gpus;
      if (container != null && (resized || gpus > 0 && !RESIZES.contains(r.getContainerUpdateType()))
          && scheduler.fixesGpus(container)) {
        errors.add(UpdateContainerError.newInstance(
            "the GPUs of a running container and its execution type cannot be changed", r));
      } else {
        others.add(r);
      }
    }
    if (!errors.isEmpty()) {
      request.setUpdateRequests(others);
    }
    return errors;
  }

  private static <T> List<T> orNone(List<T> list) {
    return list == null ? List.of() : list;
  }
}
