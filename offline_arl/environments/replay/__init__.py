"""The replay environment: logs answer for the tools, the users and the judge that a team does not have.

An agent that does what was done once gets what was answered then, message by message, to the recorded outcome. Where
it does something else, each call is looked up among the recordings of the same task; what nobody ever called is a miss,
which the agent is told and the measures count. How far results can be trusted is for the miss rate to say.
"""
