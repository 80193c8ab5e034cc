"""Published results again, by the models and planners of aiacc: nothing here is measured."""
