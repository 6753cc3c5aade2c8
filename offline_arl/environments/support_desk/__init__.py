"""A shop's support desk: tasks, tools, policy, rule judge, scripted agents and a log generator."""

from offline_arl.environments.support_desk.environment import SupportDesk, SupportDeskFamily

family = SupportDeskFamily()

__all__ = ["SupportDesk", "SupportDeskFamily", "family"]
