"""HiveD's virtual private clusters: cells, buddy allocation, priorities, preemption, bad hardware, exchange.

Pure and in memory: no I/O, no clock, no log. Use:

    cells = Cells(layout(parse(text, CellsFile, "cells.yaml"), topology))   # config, core
    machines(cells, vc)                  # machines: the VC's private cluster, with free GPUs and bindings to hosts
    cells.request(Request(group, vc, priority, members, on=((host, gpus), ...)))
        # one gang; `on` binds it to the hosts that a policy chose; priority -1: opportunistic
        # PLACED workers | PREEMPT victims (end them after their grace, release each) | WAIT reason
    cells.release(group).ready           # preemptors with no victims left: request them again to place them
    cells.set_health(host, healthy, gpus)    # returns the groups that use these GPUs; end them or let them run
    dump(cells), load(layout, data)      # recovery: the whole state as JSON values
    adopt(cells, request, workers)       # recovery: a group that already runs there
    reconfigured(cells, new_layout)      # recovery: another configuration, running groups kept
"""
