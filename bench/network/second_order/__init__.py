"""Second-order steps on capped virtual hosts, predicted and measured."""
