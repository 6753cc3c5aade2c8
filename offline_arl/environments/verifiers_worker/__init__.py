"""The program that runs verifiers environments for `environments.verifiers_env`, and the seat of its policy.

It is run by path, by a Python that has verifiers and need not have offline_arl: verifiers and what its environments
need may not fit into one installation with what training needs. So it imports verifiers and the standard library only,
and nothing here is imported by offline_arl.
"""
