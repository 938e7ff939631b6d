"""HiveD's virtual private clusters: cells, buddy allocation, borrowers, bad hardware, exchange.

Pure and in memory: no I/O, no clock, no log. Use:

    cells = Cells(layout(parse(text, CellsFile, "cells.yaml"), topology))   # config, core
    machines(cells, vc)                  # machines: the VC's private cluster, with free GPUs and bindings to hosts
    cells.request(GroupRequest(group, vc, priority, members, inside=cells_inside(cells, gang)))
        # one gang, on the machines that a policy chose; with priority -1 (opportunistic) on=((host, gpus), ...)
        # its GPUs, and borrowers on them: release each; None: it does not fit
    cells.release(group)
    cells.set_health(host, healthy, gpus)    # the groups that use these GPUs keep them
    adopt(cells, request, workers)       # recovery: a group that already runs there
    adopt_all(make_cells, groups)        # recovery: all groups at once, as after a change of the layout

HiveD's own scheduler, whose groups have priorities and are placed on any cells, is `lab/hived/groups`.
"""
