"""How logged model calls become trajectories; `offline_arl.logs.stitching.stitch` is the way in."""
