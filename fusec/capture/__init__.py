"""From torch to our Graph: front keys, AOTAutograd, recipes. The only package that sees Dynamo."""
