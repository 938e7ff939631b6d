package isonomy.yarn;

import java.util.Set;
import org.apache.hadoop.yarn.api.records.SchedulingRequest;
import org.apache.hadoop.yarn.api.resource.PlacementConstraint;
import org.apache.hadoop.yarn.api.resource.PlacementConstraints;

/** The partition of YARN's node labels that a request of the constraint API names. */
final class Partitions {
  private Partitions() {}

  /** The partition; empty if the request names none, so it is for the default partition. */
  static String of(SchedulingRequest request) {
    PlacementConstraint constraint = request.getPlacementConstraint();
    return constraint == null ? "" : of(constraint.getConstraintExpr());
  }

  private static String of(PlacementConstraint.AbstractConstraint constraint) {
    if (constraint instanceof PlacementConstraint.SingleConstraint) {
      for (PlacementConstraint.TargetExpression target
          : ((PlacementConstraint.SingleConstraint) constraint).getTargetExpressions()) {
        Set<String> values = target.getTargetValues();
        if (PlacementConstraints.NODE_PARTITION.equals(target.getTargetKey()) && values != null && values.size() == 1) {
          return values.iterator().next();
        }
      }
    } else if (constraint instanceof PlacementConstraint.And) {
      for (PlacementConstraint.AbstractConstraint part : ((PlacementConstraint.And) constraint).getChildren()) {
        String partition = of(part);
        if (!partition.isEmpty()) {
          return partition;
        }
      }
    }
    return "";
  }
}
