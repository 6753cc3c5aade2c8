"""How logged model calls become trajectories; `offline_arl.logs.stitch` is the way in."""
