"""Endpoints of language models: requests, answers, what they refuse, prices; a scripted one."""
