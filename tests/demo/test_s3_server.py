"""The S3 server that the demo starts is a real one: conditional writes and signatures."""

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from fusec.demo.s3_server import s3_server


@pytest.mark.s3
def test_bucket_is_there_and_writes_can_be_conditional(tmp_path):
    with s3_server(tmp_path / "s3") as server:
        keys = {"aws_access_key_id": server.access_key, "region_name": "us-east-1"}
        config = Config(request_checksum_calculation="when_required")
        client = boto3.client(
            "s3",
            endpoint_url=server.endpoint,
            aws_secret_access_key=server.secret_key,
            config=config,
            **keys,
        )
        client.put_object(Bucket=server.bucket, Key="a", Body=b"1", IfNoneMatch="*")
        with pytest.raises(ClientError, match="PreconditionFailed"):
            client.put_object(Bucket=server.bucket, Key="a", Body=b"2", IfNoneMatch="*")
        assert client.get_object(Bucket=server.bucket, Key="a")["Body"].read() == b"1"
        client.close()
        stranger = boto3.client(
            "s3", endpoint_url=server.endpoint, aws_secret_access_key="wrong", **keys
        )
        with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
            stranger.list_objects_v2(Bucket=server.bucket)
        stranger.close()
        assert server.secret_key not in repr(server)
