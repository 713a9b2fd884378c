"""`genret doctor`: is a checkpoint decoded exactly?"""
